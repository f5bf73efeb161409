"""The whole system in processes over real brokers, Redis and a bucket, while each of them is
killed, paused or cut off.
"""
