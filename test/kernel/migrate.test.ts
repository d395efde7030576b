import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { describe, expect, it } from 'vitest'
import { parse, stringify } from 'yaml'
import { runInProcess } from '../support/command.ts'
import { EXAMPLE_FLAGS } from '../support/daemon.ts'
import { temporaryFolder } from '../support/folder.ts'

const KUBEADM = fileURLToPath(new URL('../unit/config/kubeadm-config.yaml', import.meta.url))

/** `kprobe doctor --migrate` with kubeadm's file, with these fields. */
async function migrate(fields: object, ...argv: readonly string[]) {
  const file = join(temporaryFolder(), 'config.conf')
  writeFileSync(file, stringify({ ...parse(readFileSync(KUBEADM, 'utf8')), ...fields }))
  return await runInProcess(['doctor', '--migrate', `--config=${file}`, ...EXAMPLE_FLAGS, ...argv])
}

describe('kprobe doctor --migrate', () => {
  it("names the Services that depend on a difference of kubeadm's configuration, and exits 3", async () => {
    const { code, out } = await migrate({})
    expect(code).toBe(3)
    expect(out).toContain('from kube-proxy in iptables mode to kprobe in nftables mode\n')
    expect(out).toMatch(/^DIFFERS +node ports +answer at .* \(shop\/cart, .*\)$/m)
    expect(out).toMatch(/\n4 Services may depend on a difference: .*\n$/)
  })

  it('exits 0 once the configuration says what they need', async () => {
    const nodePortAddresses = ['0.0.0.0/0', '::/0', '127.0.0.0/8']
    const { code, out } = await migrate({ nodePortAddresses })
    expect([code, out.split('\n').at(-2)]).toEqual([0, 'no Service depends on a difference'])
  })

  it("keeps kube-proxy's mode where kubeadm 1.37 writes it", async () => {
    const { code, out } = await migrate({ mode: 'iptables' })
    expect(code).toBe(0)
    expect(out).toContain('from kube-proxy in iptables mode to kprobe in iptables mode\n')
    expect(out).toMatch(/^note +cost of iptables mode +with 1000 Services/m)
  })

  it('gives plain data, and fails where there are no objects', async () => {
    const { code, out } = await migrate({}, '--output=json')
    expect(code).toBe(3)
    const { migration } = JSON.parse(out)
    expect(migration).toMatchObject({ from: 'iptables', to: 'nftables' })
    expect(migration.services).toContain('shop/cart')
    expect((await migrate({}, '--source=file:/nowhere')).code).toBe(1)
  })
})
