// One line instead of a stack trace on a clone where `npm run build` has not run. Also the globalSetup of vitest.config.ts.
import { existsSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

const BUILT = { 'build/Release/kprobe.node': 'the native addon', 'dist/kprobe.mjs': 'the command' }

/** Ends the process with exit code 1 if one of `paths`, below the top folder, was not built. */
export function requireBuild(paths = Object.keys(BUILT)) {
  const missing = paths.find(path => !existsSync(fileURLToPath(new URL(`../../${path}`, import.meta.url))))
  if (missing === undefined) return
  console.error(`${BUILT[missing]} is not built (${missing}); run: npm run build`)
  process.exit(1)
}

export default () => requireBuild()
