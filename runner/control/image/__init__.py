"""Images that a launch brings to hosts: built there from files of here, or sent from here."""
