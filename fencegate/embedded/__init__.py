"""Real servers run as children of ours, out of wheels: a Postgres and an etcd cluster that end when we do."""
