"""The judge in tools that evaluate models; one module for each tool."""
