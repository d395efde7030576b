import { generateKeyPairSync } from 'node:crypto'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { followTls, readTls, type TlsPems } from '../../../../src/api/grpc/http-server.ts'
import { FakeClock } from '../../../support/fake-clock.ts'
import { eventually } from '../../../support/patience.ts'
import { createAuthority } from '../../../support/tls.ts'

const folder = mkdtempSync(join(tmpdir(), 'kprobe-tls-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))

const authority = createAuthority()
const own = authority.issue()
const files = {
  certFile: `${folder}/cert.pem`,
  keyFile: `${folder}/key.pem`,
  clientCaFile: `${folder}/ca.pem`,
}

function write({ cert = own.certPem, key = own.keyPem, clientCa = authority.caPem }: Partial<TlsPems> = {}) {
  writeFileSync(files.certFile, cert)
  writeFileSync(files.keyFile, key)
  writeFileSync(files.clientCaFile, clientCa)
}

beforeEach(() => write())

describe('readTls', () => {
  it('reads what fits together, chains and bundles as well', async () => {
    const bundle = `# ours\n${authority.caPem}\n${createAuthority().caPem}`
    write({ cert: own.certPem + authority.caPem, clientCa: bundle })
    expect(await readTls(files)).toMatchObject({ key: own.keyPem, clientCa: bundle })
  })

  it.each([
    // Node.js takes an empty list of authorities for every public one.
    ['clientCa', '', /^--api-tls-client-ca: there is no certificate in .*ca\.pem$/],
    ['clientCa', 'no certificate', /^--api-tls-client-ca: there is no certificate in .*ca\.pem$/],
    [
      'clientCa',
      `${authority.caPem}-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n`,
      /^--api-tls-client-ca: certificate 2 in .*ca\.pem: /,
    ],
    ['cert', '', /^--api-tls-cert: there is no certificate in .*cert\.pem$/],
    [
      'cert',
      createAuthority().issue().certPem,
      /^--api-tls-key: the key in .*key\.pem does not match .*cert\.pem$/,
    ],
    ['key', 'no key', /^--api-tls-key: no private key that can be read in .*key\.pem: /],
  ] as const)('refuses a file that cannot be used by flag and path: %s %j', async (name, text, message) => {
    write({ [name]: text })
    await expect(readTls(files)).rejects.toThrow(message)
  })

  it('refuses what OpenSSL does not take, by flag and path', async () => {
    const weak = authority.issue({ keys: generateKeyPairSync('rsa', { modulusLength: 512 }) })
    write({ cert: weak.certPem, key: weak.keyPem })
    await expect(readTls(files)).rejects.toThrow(
      /^--api-tls-cert: .*cert\.pem cannot be used .*key too small/,
    )
  })

  it.each([
    ['certFile', '--api-tls-cert'],
    ['keyFile', '--api-tls-key'],
    ['clientCaFile', '--api-tls-client-ca'],
  ])('refuses a file that is not there: %s', async (name, flag) => {
    const missing = readTls({ ...files, [name]: `${folder}/none.pem` })
    await expect(missing).rejects.toThrow(new RegExp(`^${flag}: ENOENT.*none\\.pem`))
  })
})

describe('followTls', () => {
  /** Files are read by the system, whose time is its own. */
  const look = async (clock: FakeClock, afterMs: number): Promise<void> => {
    await clock.advance(afterMs)
    // The next look is planned when one is over.
    await eventually(() => clock.pending === 1)
  }

  async function rigOf() {
    const clock = new FakeClock()
    const changes: TlsPems[] = []
    const errors: string[] = []
    const cancel = followTls(files, {
      clock,
      pems: await readTls(files),
      changed: pems => changes.push(pems),
      failed: error => errors.push(error.message),
    })
    /** What is new counts if it is the same 100 ms later. */
    const looked = async (): Promise<void> => {
      await look(clock, 60_000)
      await look(clock, 100)
    }
    return { clock, changes, errors, cancel, looked }
  }

  it('reports renewed files, and no others', async () => {
    const { changes, errors, cancel, looked } = await rigOf()
    await looked()
    expect(changes).toEqual([])
    const renewed = authority.issue()
    write({ cert: renewed.certPem, key: renewed.keyPem })
    await looked()
    await looked()
    expect(changes).toMatchObject([{ cert: renewed.certPem, key: renewed.keyPem }])
    expect(errors).toEqual([])
    cancel()
  })

  it('says once that files cannot be used, keeps what it had, and goes on when they can', async () => {
    const { changes, errors, cancel, looked } = await rigOf()
    const renewed = authority.issue()
    // In the middle of a renewal: the certificate is another one, the key is not yet.
    write({ cert: renewed.certPem })
    await looked()
    await looked()
    expect(changes).toEqual([])
    expect(errors).toHaveLength(1)
    write({ cert: renewed.certPem, key: renewed.keyPem })
    await looked()
    expect(changes).toHaveLength(1)
    write({ clientCa: '' })
    await looked()
    expect(errors).toHaveLength(2)
    cancel()
  })

  it('waits for a writer that has written one file and not yet the other', async () => {
    const { clock, changes, errors, cancel } = await rigOf()
    const renewed = authority.issue()
    write({ cert: renewed.certPem })
    await look(clock, 60_000)
    write({ cert: renewed.certPem, key: renewed.keyPem })
    await look(clock, 100)
    await look(clock, 100)
    expect(changes).toMatchObject([{ cert: renewed.certPem, key: renewed.keyPem }])
    expect(errors).toEqual([])
    cancel()
  })

  it('ends when it is canceled', async () => {
    const { clock, cancel } = await rigOf()
    cancel()
    expect(clock.pending).toBe(0)
  })
})
