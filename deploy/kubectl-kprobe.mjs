#!/usr/bin/env node
// `kubectl kprobe ...` is `kprobe nodes ...`: kubectl runs the program of this name that is on PATH.
process.argv.splice(2, 0, 'nodes')
await import('./kprobe.mjs')
