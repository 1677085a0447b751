"""The parties that the coordinator hears: admitted, present, of which key epoch, set back."""
