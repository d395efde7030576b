import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { onTestFinished } from 'vitest'

/** An empty folder that goes with the test that is running, behind what its `afterEach` ends. */
export function temporaryFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), 'kprobe-test-'))
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }))
  return folder
}
