"""What the connections to other systems are made with: certificates, names, passwords; and what their refusal means."""
