import { spawnSync } from 'node:child_process'
import { expect, it } from 'vitest'
import { patientMs } from '../support/patience.ts'
import { runs } from '../support/runs.ts'

const ROOT = new URL('../../', import.meta.url).pathname

/* Needs `npm run build`. */
it('npm run drill: kprobe status tells the one fault of a broken node', {
  timeout: patientMs(300_000),
}, () => {
  const env = { ...process.env, KPROBE_DRILL_NODES: String(runs(13)) }
  const { status, stdout, stderr } = spawnSync(process.execPath, [`${ROOT}test/drill/run.mjs`, '1'], {
    encoding: 'utf8',
    env,
    input: '',
  })
  expect(stdout + stderr).not.toContain('MISSED')
  expect(status, stdout + stderr).toBe(0)
})
