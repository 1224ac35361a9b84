"""The built-in methods. Every file here is one method, called by its name, and nothing else is here.

The file declares all there is to know of it: its class with its row of ``ecgl methods``, and its section of the config.
``learn.method.table`` finds it there; nothing lists the methods.
"""
