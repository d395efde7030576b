#!/usr/bin/env node
// dist/kprobe.mjs: runs program.js with the code in program.cache, which deploy/keep-code.mjs left there at build time.
// V8 ignores what another version of it compiled, or one with other flags, and then compiles as if there were nothing.
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { Script } from 'node:vm'

const program = new URL('program.js', import.meta.url)

function keptCode() {
  try {
    return readFileSync(new URL('program.cache', import.meta.url))
  } catch {
    return undefined
  }
}

// The program is all ASCII, which deploy/build.mjs makes sure of. In stack traces, V8 shows the name that kept code was compiled
// under: a path would be that of the machine that built it.
const script = new Script(readFileSync(program, 'latin1'), { filename: 'program.js', cachedData: keptCode() })
script.runInThisContext()(createRequire(import.meta.url), import.meta.url)
