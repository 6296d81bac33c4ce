"""What the service stands, and what attacks do to a judge."""
