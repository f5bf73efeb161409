#!/usr/bin/env bash
# A real Kafka (KRaft) from Maven jars, on loopback.
#   kafka.sh jars                                     fetch the jars, nothing else
#   kafka.sh up [--brokers N] [--port P] [--host H]   print the bootstrap servers once all brokers answer; idempotent
#   kafka.sh status | bootstrap
#   kafka.sh down | wipe                              wipe = down, then delete the data
#   kafka.sh kill ID | start ID | stop ID             SIGKILL, start again, or SIGTERM one broker
#   --secure PEM with up: also listen on P+2 of each broker with TLS and a login (reader, password secret); PEM
#                         is the broker's key (PKCS #8) and certificates
# Environment: STATE=.state  CACHE=.cache  HEAP=512m (384m with several brokers)
#              CLASSES=FILE with up: a broker that ends writes an archive of its classes there
# Broker I listens on P+10*(I-1), its controller on the port after that. P defaults to 19092.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../lib.sh"

usage() { sed -n '2,12s/^# \?//p' "${BASH_SOURCE[0]}"; exit 2; }

verb=${1:-}
shift || true
brokers=1 port=19092 host=127.0.0.1 id= secure=
while [ $# -gt 0 ]; do
  case $1 in
    --brokers) brokers=$2; shift 2 ;;
    --port) port=$2; shift 2 ;;
    --host) host=$2; shift 2 ;;
    --secure) secure=$(cd "$(dirname "$2")" && pwd)/$(basename "$2"); shift 2 ;;
    [0-9]*) id=$1; shift ;;
    *) usage ;;
  esac
done

state=${STATE:-.state}/kafka cache=${CACHE:-.cache}/kafka
mkdir -p "$state" "$cache"
state=$(cd "$state" && pwd) cache=$(cd "$cache" && pwd -P)
# After the first `up` the layout on disk is the truth.
[ -f "$state/layout" ] && read -r brokers port host <"$state/layout"

ids() { seq 1 "$brokers"; }
port_of() { echo $((port + 10 * ($1 - 1))); }
bootstrap() { local i all=; for i in $(ids); do all+=",$host:$(port_of "$i")"; done; echo "${all#,}"; }

jars() {
  [ -f "$cache/.done" ] && cmp -s "$here/pom.xml" "$cache/.done" && return 0
  need mvn
  (
    flock 9 # several test runs may begin at once
    [ -f "$cache/.done" ] && cmp -s "$here/pom.xml" "$cache/.done" && exit 0
    echo "kafka: fetching the jars of the broker (54 MB)" >&2
    rm -rf "$cache/libs"
    # -U: a failed look-up is otherwise remembered for a day
    mvn -q -B -C -U -f "$here/pom.xml" dependency:copy-dependencies -DoutputDirectory="$cache/libs" \
      >"$cache/mvn.log" 2>&1 || die "the jars of Kafka could not be fetched with Maven: see $cache/mvn.log"
    (cd "$cache/libs" && sha256sum --strict --quiet -c "$here/jars.sha256" >&2) || die "the jars of Kafka are not those of $here/jars.sha256"
    cp "$here/pom.xml" "$cache/.done"
  ) 9>"$cache/.lock"
}

java_options=(-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp "$cache/libs/*"
  -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -Dorg.slf4j.simpleLogger.showDateTime=true)
classes=$cache/classes.jsa # infra/classes.sh writes it
[ -f "$classes" ] && java_options+=(-XX:SharedArchiveFile="$classes" -Xlog:disable)

configure() { # write the properties of every broker and format its directory, once
  [ -f "$state/layout" ] && return 0
  local i voters= rf=1 isr=1 cluster
  [ "$brokers" -ge 3 ] && rf=3 isr=2
  for i in $(ids); do voters+=",$i@$host:$(($(port_of "$i") + 1))"; done
  cluster=T$(head -c 16 /dev/urandom | base64 | tr '+/' '-_' | cut -c2-22)
  for i in $(ids); do
    mkdir -p "$state/$i"
    sed -e "s|@ID@|$i|; s|@VOTERS@|${voters#,}|; s|@HOST@|$host|g; s|@PORT@|$(port_of "$i")|g" \
      -e "s|@CPORT@|$(($(port_of "$i") + 1))|; s|@DATA@|$state/$i/data|; s|@RF@|$rf|; s|@ISR@|$isr|" \
      "$here/server.properties.in" >"$state/$i/server.properties"
    [ -n "$secure" ] && listen_secured "$i"
    java -Xmx128m "${java_options[@]}" kafka.tools.StorageTool format --ignore-formatted -t "$cluster" \
      -c "$state/$i/server.properties" ${secure:+--add-scram 'SCRAM-SHA-256=[name=reader,password=secret]'} >"$state/$i/format.log" 2>&1 || die "broker $i could not be formatted: see $state/$i/format.log"
  done
  echo "$brokers $port $host" >"$state/layout"
}

listen_secured() { # one more listener, behind TLS and a login
  local at=$host:$(($(port_of "$1") + 2)) login=org.apache.kafka.common.security
  sed -i -e "s|^listeners=.*|&,SECURED://$at|; s|^advertised.listeners=.*|&,SECURED://$at|" \
    -e "s|^listener.security.protocol.map=.*|&,SECURED:SASL_SSL|" "$state/$1/server.properties"
  cat >>"$state/$1/server.properties" <<END

sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256
listener.name.secured.ssl.keystore.type=PEM
listener.name.secured.ssl.keystore.location=$secure
listener.name.secured.plain.sasl.jaas.config=$login.plain.PlainLoginModule required user_reader="secret";
listener.name.secured.scram-sha-256.sasl.jaas.config=$login.scram.ScramLoginModule required;
END
}

launch() {
  local heap=${HEAP:-512m}
  [ "$brokers" -gt 1 ] && heap=${HEAP:-384m}
  alive "broker-$1" || port_free "$host" "$(port_of "$1")"
  start "broker-$1" "$state/$1/broker.log" \
    java -Xmx"$heap" "${java_options[@]}" ${CLASSES:+-XX:ArchiveClassesAtExit="$CLASSES"} kafka.Kafka "$state/$1/server.properties"
}

answers() { ready 240 "broker-$1" "$state/$1/broker.log" listening "$host" "$(port_of "$1")"; }

report() {
  local i rc=0 name
  [ -f "$state/layout" ] || die "kafka was never started"
  for i in $(ids); do
    name=broker-$i
    if alive "$name"; then
      echo "broker $i up, pid $(pid_of "$name"), $host:$(port_of "$i"), $(memory_mb "$(pid_of "$name")") MB"
    else
      echo "broker $i down"
      rc=1
    fi
  done
  return $rc
}

down() {
  local i
  # A controller waits for its quorum while it stops, so all are told at once.
  for i in $(ids); do alive "broker-$i" && kill -TERM "$(pid_of "broker-$i")"; done || true
  for i in $(ids); do stop "broker-$i" 20; done
}

case $verb in
  jars) jars ;;
  up)
    need java
    jars
    configure
    for i in $(ids); do launch "$i"; done
    for i in $(ids); do answers "$i" || exit 1; done
    bootstrap ;;
  status) report ;;
  bootstrap) bootstrap ;;
  kill)
    [ -n "$id" ] || usage
    alive "broker-$id" || die "broker $id is not running"
    kill -KILL "$(pid_of "broker-$id")"
    stop "broker-$id" ;;
  stop) [ -n "$id" ] || usage; stop "broker-$id" 20 ;;
  start) [ -n "$id" ] || usage; launch "$id"; answers "$id" ;;
  down) down ;;
  wipe) down; rm -rf "$state" ;;
  *) usage ;;
esac
