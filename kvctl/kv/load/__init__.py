"""Rows and dumps loaded into a bucket."""
