"""One module a subcommand: options in, a public function called, results printed."""
