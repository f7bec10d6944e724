"""Imported policies: trained elsewhere, read from their files, and used like the policies of our own runs."""
