#!/usr/bin/env node
// dist/kprobe.mjs: runs program.js with the compiled code that deploy/keep-code.mjs left beside it at build time. V8
// ignores what another version of it compiled, or one with other flags, and then compiles as if there were nothing. Code for
// another architecture it takes, and crashes: the name of the file has the architecture.
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { Script } from 'node:vm'

const program = new URL('program.js', import.meta.url)

function keptCode() {
  try {
    return readFileSync(new URL(`program.${process.arch}.cache`, import.meta.url))
  } catch {
    return undefined
  }
}

// The program is all ASCII, which deploy/build.mjs makes sure of. In stack traces, V8 shows the name that kept code was compiled
// under: a path would be that of the machine that built it.
const script = new Script(readFileSync(program, 'latin1'), { filename: 'program.js', cachedData: keptCode() })
script.runInThisContext()(createRequire(import.meta.url), import.meta.url)
