#!/bin/sh
# Makes the certificates of the TLS tests, good for a hundred years: an authority with a server (127.0.0.1,
# localhost) and a client, and a stranger, which nobody trusts. The keys guard nothing. Run once, committed.
set -eu
cd "$(dirname "$0")"

issue() { # name, extensions
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$1" -keyout "$1-key.pem" -out "$1.csr"
    printf '%s\n' "$2" >"$1.ext"
    openssl x509 -req -in "$1.csr" -CA ca.pem -CAkey ca-key.pem -CAcreateserial -days 36500 -extfile "$1.ext" -out "$1.pem"
    rm "$1.csr" "$1.ext"
}

for authority in ca stranger; do
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 36500 -subj "/CN=kvctl tests $authority" \
        -addext keyUsage=critical,keyCertSign,digitalSignature -keyout "$authority-key.pem" -out "$authority.pem"
done
issue server "subjectAltName=IP:127.0.0.1,DNS:localhost"
issue client "extendedKeyUsage=clientAuth"
rm ca-key.pem ca.srl
