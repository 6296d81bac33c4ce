"""Who wins: from judgements to an order among candidates."""
