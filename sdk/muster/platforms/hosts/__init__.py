"""Workers on other machines, reached by the OpenSSH client as its user has set it up."""
