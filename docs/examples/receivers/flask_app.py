"""A receiver of callbacks with Flask. Settings: SECRETS, TENANT, PORT."""

import functools
import os

from flask import Flask, abort, request
from sluice import InvalidSignature, verify

SECRETS, TENANT = os.environ["SECRETS"].split(","), os.environ.get("TENANT")
app = Flask(__name__)
app.config["MAX_CONTENT_LENGTH"] = 1 << 20


def from_sluice(view):
    """Give a view the event of a request that is from Sluice; refuse any other."""

    @functools.wraps(view)
    def checked():
        try:
            event = verify(request.headers, request.get_data(), SECRETS, tenant=TENANT)
        except InvalidSignature as why:
            abort(401, str(why))
        return view(event)

    return checked


@app.post("/callbacks")
@from_sluice
def callback(event):
    print(event["type"], event["data"]["id"], flush=True)
    return "", 204


if __name__ == "__main__":
    app.run("127.0.0.1", int(os.environ.get("PORT", "9000")))
