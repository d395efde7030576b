import { describe, expect, it } from 'vitest'
import { folderCircleComplaints, openDoorComplaints, wallComplaints } from '../../support/folder-rules.ts'
import { sourceFile as file } from '../../support/source-rules.ts'

describe('folderCircleComplaints', () => {
  const below = file('src/config/settings.ts', "import type { Row } from './modes/row.ts'")
  const row = file('src/config/modes/row.ts', "import type { Flag } from '../flag.ts'")

  it('names folders that import each other by different files, at every depth', () => {
    const up = file('src/config/flags.ts', "import { MODES } from '../modes/registry.ts'")
    const down = file('src/modes/mode.ts', "import type { Config } from '../config/config.ts'")
    expect(folderCircleComplaints([up, down])).toEqual(['circle: src/config -> src/modes -> src/config'])
    const a = file('src/kernel/nft/a.ts', "import '../xt/b.ts'")
    const b = file('src/kernel/xt/c.ts', "import '../nft/d.ts'")
    expect(folderCircleComplaints([a, b])).toEqual([
      'circle: src/kernel/nft -> src/kernel/xt -> src/kernel/nft',
    ])
  })

  it('lets the files of a folder know what is inside it, and be known there', () => {
    expect(folderCircleComplaints([below, row])).toEqual([])
  })
})

describe('wallComplaints', () => {
  const importing = (path: string, module: string) =>
    wallComplaints(file(path, `import type { A } from '${module}'`))

  it.each([
    ['src/daemon/open.ts', '../proof/prover.ts'],
    ['src/cli/cleanup.ts', '../inspect/check/doctor.ts'],
    ['src/config/own-flags.ts', '../api/grpc/address.ts'],
    ['src/daemon/open.ts', '../relay/open.ts'],
  ])('refuses %s importing %s', (path, module) => {
    expect(importing(path, module)).toHaveLength(1)
  })

  it('lets the wings import the daemon, and the registries the wings', () => {
    expect(importing('src/inspect/load.ts', '../daemon/open.ts')).toEqual([])
    expect(importing('src/optional-parts.ts', './proof/prover.ts')).toEqual([])
    expect(importing('src/daemon/daemon.ts', './optional-parts.ts')).toEqual([])
  })
})

describe('openDoorComplaints', () => {
  const door = (text: string) => openDoorComplaints(file('src/optional-parts.ts', text))

  it.each(["import { Prover } from './proof/prover.ts'", "export { Prover } from './proof/prover.ts'"])(
    'refuses %s',
    text => {
      expect(door(text)).toHaveLength(1)
    },
  )

  it.each([
    "import type { Prover } from './proof/prover.ts'",
    "export type { Prover } from './proof/prover.ts'",
    "const prover = () => import('./proof/prover.ts')",
    "import { openDaemon } from './daemon/open.ts'",
  ])('accepts %s', text => {
    expect(door(text)).toEqual([])
  })
})
