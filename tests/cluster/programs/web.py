"""A web server and its client in two processes, one connection that stays open: web.py STEPS SECONDS."""

import hashlib
import http.client
import http.server
import os
import signal
import sys
import time


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers with the hash of the path, and how many requests this connection has had."""

    protocol_version = "HTTP/1.1"
    count = 0

    def do_GET(self) -> None:
        body = f"{self.count} {hashlib.sha256(self.path.encode()).hexdigest()}".encode()
        self.count += 1
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


steps, pause = int(sys.argv[1]), float(sys.argv[2])
server = http.server.ThreadingHTTPServer(("", 0), Handler)
port = server.server_port
child = os.fork()
if child == 0:
    server.serve_forever()
server.server_close()
client = http.client.HTTPConnection(os.uname().nodename, port)
path = "/start"
for number in range(steps):
    client.request("GET", path)
    text = client.getresponse().read().decode()
    print(number, text, flush=True)
    path = "/" + text.split()[1]
    time.sleep(pause)
os.kill(child, signal.SIGTERM)
