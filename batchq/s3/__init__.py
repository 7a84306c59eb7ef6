"""The S3 protocol, for those who keep results there and those who read documents there.

One client for both: who asks and where is the SDK's to find out, as for every tool that uses
it; what happens after a failure is decided here, and what it means is for the caller to say.
"""
