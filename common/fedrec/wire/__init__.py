"""The messages between the parties, and the calls that carry them: gRPC over mutual TLS 1.3.

gRPC reads its environment when it is imported. These settings therefore come before any module of
this package imports it. With a P-256 certificate on the server, the only remaining TLS 1.2 cipher
fits no handshake, which leaves TLS 1.3. A coordinator tests that when it starts. gRPC's own lines
on stderr are off, because they would repeat fedrec's errors in other words, endlessly.
"""

import os

os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-RSA-AES128-GCM-SHA256"
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
