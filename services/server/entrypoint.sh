#!/bin/bash
# What the image runs: `executor` is what Spark starts in the pods that a driver asks for, `driver` what spark-submit starts for a
# SparkApplication; anything else is the command.
set -eu
if [ "${1:-}" = driver ]; then
  shift
  exec "$SPARK_HOME/bin/spark-submit" --deploy-mode client --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" "$@"
fi
[ "${1:-}" = executor ] || exec tidemill "$@"

options=()
i=0
while name=SPARK_JAVA_OPT_$i; [ -n "${!name+set}" ]; do
  options+=("${!name}")
  i=$((i + 1))
done
exec java "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
  -cp "${SPARK_CONF_DIR:-$SPARK_HOME/conf}:$SPARK_HOME/jars/*" \
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "$SPARK_DRIVER_URL" \
  --executor-id "$SPARK_EXECUTOR_ID" \
  --cores "$SPARK_EXECUTOR_CORES" \
  --app-id "$SPARK_APPLICATION_ID" \
  --hostname "$SPARK_EXECUTOR_POD_IP" \
  --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
  --podName "$SPARK_EXECUTOR_POD_NAME"
