"""Published data sets as files that verl reads: fetched, validated, without duplicates, apart from validation problems.

`gtpo_verl.data.command` is the command line's ``gtpo-verl data``; docs/data.md describes it.
"""
