"""A small S3 server that fails when it is told to: s3_faults.py [UPSTREAM_PORT].

It keeps objects in memory, or with UPSTREAM_PORT hands requests on to the server there, which checks
their signatures. Prints its port, and serves until it is killed.

POST /_faults with a JSON list: what happens to the next requests, one each; null: nothing.
POST /_random with a JSON number: from now on so many of 1,000 requests fail in a random way.
GET /_log: method, path and headers of all requests so far, as JSON.
POST /_clear: forgets objects, faults and the log.
"""

import hashlib
import http.client
import json
import random
import re
import socket
import sys
import threading
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import time
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from xml.sax.saxutils import escape

PAGE = 1000  # keys of an answer to a list
PASSING = ["cut", "truncate", "503", "slowdown", "reset"]
REFUSALS = {  # fault: (status, code, more headers, more elements)
    "503": (503, "ServiceUnavailable", {}, ""),
    "500": (500, "InternalError", {}, ""),
    "slowdown": (503, "SlowDown", {}, ""),
    "skew": (403, "RequestTimeTooSkewed", {"Date": formatdate(time() + 1500, usegmt=True)}, ""),
    "region": (400, "AuthorizationHeaderMalformed", {}, "<Region>eu-central-1</Region>"),
    "moved": (301, "PermanentRedirect", {"x-amz-bucket-region": "eu-west-3"}, ""),
    "expired": (400, "ExpiredToken", {}, ""),
    "key": (403, "InvalidAccessKeyId", {}, "<AWSAccessKeyId>AKIDTEST</AWSAccessKeyId>"),
    "secret": (403, "SignatureDoesNotMatch", {}, "<AWSAccessKeyId>AKIDTEST</AWSAccessKeyId>"),
    "denied": (403, "AccessDenied", {}, ""),
    "bucket": (404, "NoSuchBucket", {}, ""),
    "page": (404, "", {}, ""),
}
lock = threading.Lock()
objects, uploads, faults, log = {}, {}, [], []
chance = 0


def answer_of(status, code="", headers=None, more=""):
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code>{more}</Error>".encode()
    return status, {"Content-Type": "application/xml", **(headers or {})}, body


def xml(body):
    return 200, {"Content-Type": "application/xml"}, body.encode()


def listed(query):
    keys = sorted(k for k in objects if k.startswith(query.get("prefix", "")))
    start = int(query.get("continuation-token", "0"))
    page = keys[start : start + PAGE]
    more = start + PAGE < len(keys)
    name = quote if query.get("encoding-type") == "url" else escape
    return xml(
        "<ListBucketResult>"
        + ("<EncodingType>url</EncodingType>" if name is quote else "")
        + f"<IsTruncated>{'true' if more else 'false'}</IsTruncated>"
        + (f"<NextContinuationToken>{start + PAGE}</NextContinuationToken>" if more else "")
        + "".join(
            f"<Contents><Key>{name(k)}</Key><Size>{len(objects[k])}</Size></Contents>" for k in page
        )
        + "</ListBucketResult>"
    )


def get(key, headers):
    if key not in objects:
        return answer_of(404, "NoSuchKey")
    body = objects[key]
    found = re.match(r"bytes=(\d+)-(\d+)$", headers.get("Range", ""))
    if not found:
        return 200, {}, body
    first, last = int(found[1]), int(found[2])
    if first >= len(body):
        return answer_of(416, "InvalidRange")
    part = body[first : last + 1]
    return 206, {"Content-Range": f"bytes {first}-{first + len(part) - 1}/{len(body)}"}, part


def complete(key, query, body):
    parts = uploads.pop(query["uploadId"], None)
    if parts is None:
        return answer_of(404, "NoSuchUpload")
    numbers = [int(n) for n in re.findall(r"<PartNumber>(\d+)<", body.decode())]
    objects[key] = b"".join(parts[n] for n in numbers)
    return xml("<CompleteMultipartUploadResult></CompleteMultipartUploadResult>")


def serve(method, path, headers, body):
    """What a server without faults answers: status, headers, body."""
    url = urlsplit(path)
    query = dict(parse_qsl(url.query, keep_blank_values=True))
    bucket, _, key = unquote(url.path)[1:].partition("/")
    if bucket != "bucket":
        return answer_of(404, "NoSuchBucket")
    names = [pair.partition("=")[0] for pair in url.query.split("&")]
    if names != sorted(names) or hashlib.sha256(body).hexdigest() != headers["x-amz-content-sha256"]:
        return answer_of(403, "SignatureDoesNotMatch")
    if method == "GET" and "uploads" in query:
        items = "".join(
            f"<Upload><Key>{escape(u['key'])}</Key><UploadId>{i}</UploadId></Upload>"
            for i, u in uploads.items()
        )
        return xml(f"<ListMultipartUploadsResult>{items}</ListMultipartUploadsResult>")
    if method == "GET":
        return get(key, headers) if key else listed(query)
    if method == "POST" and "uploads" in query:
        name = f"upload-{len(log)}"
        uploads[name] = {"key": key}
        return xml(f"<Result><UploadId>{name}</UploadId></Result>")
    if method == "POST":
        return complete(key, query, body)
    if method == "PUT" and "uploadId" in query:
        uploads[query["uploadId"]][int(query["partNumber"])] = body
        return 200, {"ETag": f'"{hashlib.md5(body).hexdigest()}"'}, b""
    if method == "PUT":
        objects[key] = body
    elif "uploadId" in query:
        uploads.pop(query["uploadId"], None)
    else:
        objects.pop(key, None)
    return (204 if method == "DELETE" else 200), {}, b""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def control(self, body):
        global chance
        if self.path == "/_faults":
            faults[:] = json.loads(body)
        elif self.path == "/_random":
            chance = json.loads(body)
        elif self.path == "/_clear":
            for everything in [objects, uploads, faults, log]:
                everything.clear()
        return 200, {}, json.dumps(log).encode()

    def upstream(self, body):
        connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=60)
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in ["expect", "connection"]:
                connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        drop = ["transfer-encoding", "connection", "content-length", "server", "date"]
        headers = {k: v for k, v in answer.getheaders() if k.lower() not in drop}
        result = answer.status, headers, answer.read()
        connection.close()
        return result

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with lock:
            if self.path.startswith("/_"):
                return self.send(*self.control(body))
            log.append([self.command, self.path, dict(self.headers.items())])
            fault = faults.pop(0) if faults else None
            if fault is None and random.randrange(1000) < chance:
                fault = random.choice(PASSING)
        if fault in REFUSALS:
            return self.send(*answer_of(*REFUSALS[fault]))
        if fault == "cut":  # before it has done anything
            return self.cut()
        if len(sys.argv) > 1:
            result = self.upstream(body)
        else:
            with lock:
                if fault == "corrupt":
                    headers = {**self.headers, "x-amz-content-sha256": ""}
                    body = b"?" + body[1:]
                    headers["x-amz-content-sha256"] = hashlib.sha256(body).hexdigest()
                    result = serve(self.command, self.path, headers, body)
                else:
                    result = serve(self.command, self.path, self.headers, body)
        if fault == "reset":  # it has done what it was asked to do, but does not say so
            return self.cut()
        if fault == "late":  # an error after the answer has begun
            result = 200, result[1], answer_of(500, "InternalError")[2]
        self.send(*result, truncate=fault == "truncate")

    def send(self, status, headers, body, truncate=False):
        self.send_response_only(status)
        for name, value in {"Date": formatdate(usegmt=True), **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", len(body) + (100 if truncate else 0))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if truncate else body)
        if truncate:
            self.cut()

    def cut(self):
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)

    do_GET = do_PUT = do_POST = do_DELETE = answer


def main():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
