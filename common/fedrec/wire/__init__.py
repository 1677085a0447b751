"""What travels between the parties, and how it is called: gRPC over mutual TLS 1.3.

gRPC reads its environment when it is imported, so that these stand here, before any module of this
package imports it. With a P-256 certificate on the server the one cipher of TLS 1.2 that is left
fits no handshake, which leaves TLS 1.3; a coordinator tries that at its start. gRPC's own lines
on stderr say what fedrec's errors say, in other words and for ever.
"""

import os

os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-RSA-AES128-GCM-SHA256"
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
