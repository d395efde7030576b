import { fileURLToPath } from 'node:url'
import { build } from 'esbuild'
import { expect, it } from 'vitest'

it('is all ASCII, since its loader reads Latin-1', async () => {
  const { outputFiles } = await build({
    absWorkingDir: fileURLToPath(new URL('../../..', import.meta.url)),
    entryPoints: ['src/main.ts'],
    bundle: true,
    format: 'cjs',
    platform: 'node',
    target: 'node20',
    external: ['*.node', 'ffi-rs'],
    define: { 'import.meta.url': 'importMetaUrl' },
    logLevel: 'silent',
    write: false,
  })
  const lines = outputFiles.flatMap(({ text }) => text.split('\n'))
  expect(lines.filter(line => [...line].some(letter => letter > '\x7f'))).toEqual([])
})
