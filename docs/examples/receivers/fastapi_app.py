"""A receiver of callbacks with FastAPI. Settings: SECRETS, TENANT, PORT."""

import os

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from sluice import InvalidSignature, verify

SECRETS, TENANT = os.environ["SECRETS"].split(","), os.environ.get("TENANT")
app = FastAPI()


async def from_sluice(request: Request) -> dict:
    """Return the event of a request that is from Sluice; refuse any other."""
    try:
        return verify(request.headers, await request.body(), SECRETS, tenant=TENANT)
    except InvalidSignature as why:
        raise HTTPException(401, str(why)) from None


@app.post("/callbacks")
def callback(event: dict = Depends(from_sluice)) -> Response:
    print(event["type"], event["data"]["id"], flush=True)
    return Response(status_code=204)


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "9000")))
