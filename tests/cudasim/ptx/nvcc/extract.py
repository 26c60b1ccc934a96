#!/usr/bin/env python3
"""Writes one kernel of a PTX file, under a short name and without source positions:

    nvcc -ptx -arch=compute_80 ... -o x.ptx x.cu
    extract.py x.ptx PART_OF_ITS_MANGLED_NAME short_name > short_name.ptx
"""
import re
import sys

text = open(sys.argv[1]).read()
header = text[text.index(".version"):text.index(".address_size 64") + 16]
name = next(n for n in re.findall(r"\.entry (\w+)\(", text) if sys.argv[2] in n)
start = text.index(".entry " + name + "(")
kernel = text[start:text.index("\n}\n", start) + 3]
variables = [line for line in text.splitlines()
             if re.match(r"\.(extern \.shared|global|const)", line)
             and re.search(r"(\S+?)\[", line).group(1).split()[-1] in kernel]
kernel = "\n".join(line.strip() for line in kernel.splitlines()
                   if line.strip() and not re.match(r"\s*(\.loc|//)", line))
for number, symbol in enumerate(sorted(set(re.findall(r"\b_Z\w+|%p\b_\w+", kernel)), key=len,
                                       reverse=True)):
    short = symbol.replace(name, sys.argv[3]) if name in symbol else "s%d" % number
    kernel = re.sub(r"\b%s\b" % re.escape(symbol), short, kernel)
    variables = [re.sub(r"\b%s\b" % re.escape(symbol), short, line) for line in variables]
print("\n".join([header.strip()] + variables + [kernel]))
