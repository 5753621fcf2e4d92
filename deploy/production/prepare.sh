#!/bin/sh
# Makes secrets/ and data/ for docker-compose.yml: passwords, keys, and certificates of an authority
# of its own. What exists stays as it is. Usage: sh prepare.sh [NAME OF THE HOST]...
set -eu
cd "$(dirname "$0")"
umask 077
mkdir -p secrets data
cd secrets

random() { openssl rand -hex 32; }
keep() { [ -s "$1" ] || { cat > "$1.new" && mv "$1.new" "$1"; }; }

random | keep redis.password
random | keep backup.password
random | keep admin.token
openssl rand -base64 32 | keep codec.key
echo "whsec_$(openssl rand -base64 32)" | keep signing.secret

# The file has the digests of the passwords, and the rights of docs/redis.md.
digest() { printf %s "$(cat "$1")" | openssl dgst -sha256 -r | cut -d ' ' -f 1; }
sed "s/PASSWORD_HASH/$(digest redis.password)/; s/BACKUP_HASH/$(digest backup.password)/" ../users.acl | keep users.acl

if [ ! -s ca.pem ]; then
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -sha256 \
    -subj "/CN=Sluice" -keyout ca.key -out ca.pem 2>/dev/null
fi
# certificate FILE NAME...: for these hosts, for a year
certificate() {
  file=$1
  shift
  [ ! -s "$file.pem" ] || return 0
  names=DNS:localhost,IP:127.0.0.1
  for name in "$@"; do names="$names,DNS:$name"; done
  openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=${1:-localhost}" \
    -keyout "$file.key" -out "$file.csr" 2>/dev/null
  printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth\nkeyUsage=digitalSignature\n' "$names" > "$file.ext"
  openssl x509 -req -in "$file.csr" -CA ca.pem -CAkey ca.key -CAcreateserial -days 365 -sha256 \
    -extfile "$file.ext" -out "$file.pem" 2>/dev/null
  rm -f "$file.csr" "$file.ext"
}
certificate redis redis
certificate server "$@"

cd ..
printf 'SLUICE_UID=%s\nSLUICE_GID=%s\n' "$(id -u)" "$(id -g)" | keep .env
echo "secrets/, data/ and .env are ready. Next: set the URL of your service in sluice.yaml, then: docker compose up --build -d"
