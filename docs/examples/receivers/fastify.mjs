// A receiver of callbacks with Fastify. Settings: SECRETS, TENANT, PORT.
import Fastify from "fastify";
import { InvalidSignature, verify } from "sluice-client";

const { SECRETS, TENANT, PORT = "9000" } = process.env;
const app = Fastify({ bodyLimit: 1 << 20 });

// A plugin, because its parsers are for its own routes alone. The signature is of the bytes.
async function callbacks(app) {
  app.removeAllContentTypeParsers();
  app.addContentTypeParser("*", { parseAs: "buffer" }, (request, body, done) => done(null, body));
  app.addHook("preHandler", async (request, reply) => {
    try {
      request.event = await verify(request.headers, request.body ?? "", SECRETS.split(","), { tenant: TENANT });
    } catch (why) {
      if (!(why instanceof InvalidSignature)) throw why;
      return reply.code(401).send(why.message);
    }
  });
  app.post("/callbacks", async (request, reply) => {
    console.log(request.event.type, request.event.data.id);
    return reply.code(204).send();
  });
}

app.register(callbacks);
await app.listen({ port: Number(PORT), host: "127.0.0.1" });
