"""Files of exports and captures, and their manifests."""
