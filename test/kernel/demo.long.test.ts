import { spawnSync } from 'node:child_process'
import { expect, it } from 'vitest'
import { patientMs } from '../support/patience.ts'

const DEMO = new URL('../../deploy/demo/run.sh', import.meta.url).pathname

it('npm run demo shows real connections, and why one is rejected', () => {
  const script = `
    until kprobe flows --group-by service | grep -q shop/mail; do sleep 0.2; done
    kprobe flows --group-by service
    kprobe drops --count 1
    kprobe trace --service shop/cart --count 1
    kprobe why --from pod/shop/mail-a --to svc/shop/coming-soon`
  const options = { encoding: 'utf8', timeout: patientMs(60_000) } as const
  const { status, stdout: out, stderr } = spawnSync('sh', [DEMO, 'sh', '-c', script], options)
  expect(status, stderr).toBe(0)
  expect(out).toMatch(/^shop\/cart:http +TCP +\d+ /m)
  expect(out).toContain(
    'shop/coming-soon:http (ClusterIP) from pod20: is rejected: it has no endpoint that may serve',
  )
  expect(out).toMatch(/shop\/cart:http \(ClusterIP\) from pod20: goes to 10\.244\.0\.1[12]:8080 by pod1[12]/)
  expect(out).toContain('shop/coming-soon:http has no ready endpoint: 1 of 1 is not ready')
})
