"""From a judge input to the exact tokens of a judge: formats as data, untrusted text kept apart."""
