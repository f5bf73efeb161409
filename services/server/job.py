"""The driver of a SparkApplication, copied into the image: spark-submit runs a file alone."""

from tidemill.spark.pod_job import main

main()
