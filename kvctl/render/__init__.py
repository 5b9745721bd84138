"""Results to bytes on a stream; knows no bucket."""
