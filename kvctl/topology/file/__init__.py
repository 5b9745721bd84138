"""The topology file: document, fields, schema, export."""
