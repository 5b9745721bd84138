"""Streams as the server knows them: the JetStream API, publishing, placement, server snapshots."""
