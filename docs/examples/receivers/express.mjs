// A receiver of callbacks with Express. Settings: SECRETS, TENANT, PORT.
import express from "express";
import { InvalidSignature, verify } from "sluice-client";

const { SECRETS, TENANT, PORT = "9000" } = process.env;
const app = express();

// The signature is of the bytes, so no other parser of bodies may come before.
const fromSluice = [
  express.raw({ type: () => true, limit: "1mb" }),
  async (request, response, next) => {
    const body = Buffer.isBuffer(request.body) ? request.body : Buffer.alloc(0);
    try {
      request.event = await verify(request.headers, body, SECRETS.split(","), { tenant: TENANT });
    } catch (why) {
      if (!(why instanceof InvalidSignature)) return next(why);
      return response.status(401).send(why.message);
    }
    next();
  },
];

app.post("/callbacks", fromSluice, (request, response) => {
  console.log(request.event.type, request.event.data.id);
  response.sendStatus(204);
});

app.listen(Number(PORT), "127.0.0.1");
