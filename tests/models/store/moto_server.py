"""An S3 server that checks signatures: moto, with a user, a key and a bucket.

Prints PORT KEY SECRET OTHER_KEY OTHER_SECRET, and serves until it is killed. The second key is of a
user without permissions. It is run by the Python of a virtual environment with moto[server] in it.
"""

import logging
import os
import sys
import threading

# What it takes to make users, before requests are authenticated.
os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = "5"

import boto3
from moto.server import ThreadedMotoServer

EVERYTHING = """{"Version": "2012-10-17",
                 "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}"""


def main():
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    where = dict(endpoint_url=f"http://{host}:{port}", region_name="us-east-1")
    iam = boto3.client("iam", aws_access_key_id="none", aws_secret_access_key="none", **where)
    keys = []
    for user in ["writer", "stranger"]:
        iam.create_user(UserName=user)
        key = iam.create_access_key(UserName=user)["AccessKey"]
        keys += [key["AccessKeyId"], key["SecretAccessKey"]]
    iam.put_user_policy(UserName="writer", PolicyName="all", PolicyDocument=EVERYTHING)
    s3 = boto3.client("s3", aws_access_key_id=keys[0], aws_secret_access_key=keys[1], **where)
    s3.create_bucket(Bucket="bucket")
    print(port, *keys, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    sys.exit(main())
