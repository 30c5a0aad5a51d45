"""
A trace in foreign formats, one file per format. Each is given a trace and a path; what is at the path is the caller's care.
"""
