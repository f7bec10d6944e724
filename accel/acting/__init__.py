"""The actor: environments, the acting policy, action rules, unroll collection. No torch."""
