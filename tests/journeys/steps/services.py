"""A payment service and a carrier in one. Charges have an idempotency key, and parcels have none.
Its ledger is a file.
"""

import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

LEDGER = Path("ledger.txt")
writing = threading.Lock()


class Services(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        _, act, order = self.path.split("/")
        with writing, LEDGER.open("a+") as ledger:
            ledger.seek(0)
            rows = [line.split() for line in ledger]
            found = next((row[2] for row in rows if row[:2] == [act, order]), None)
            if act == "charge":
                print("asked", order, len(rows), file=ledger)
            if act in ("receipt", "parcel") or (act == "charge" and found is None):
                found = str(len(rows))
                print(act, order, found, file=ledger)
        if act == "find":
            found = next((row[2] for row in rows if row[:2] == ["parcel", order]), "")
        time.sleep(0.03)
        body = (found or "").encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ["SERVICES_PORT"])), Services)
    print("open", flush=True)
    server.serve_forever()
