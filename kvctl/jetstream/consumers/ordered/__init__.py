"""Ordered reading of streams: every matching message once, in order, in bounded memory."""
