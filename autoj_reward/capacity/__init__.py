"""How fast a judge can be at best, and how many devices a load needs: `autoj plan`."""
