import { editDistance } from '../base/text.ts'
import { parseBool } from './flag.ts'

/**
 * Feature gates of Kubernetes 1.36.3 and 1.37.2 that may have either value. kube-proxy accepts those of all components, since
 * manifests give every component the same list. The list comes from its registry. Spaces and line breaks separate names.
 */
const OPEN = `
  APIResponseCompression APIServerIdentity APIServerWebhookAuthenticationToken APIServingWithRoutine
  AllAlpha AllBeta AllowDNSOnlyNodeCSR AllowInsecureKubeletCertificateSigningRequests
  AllowParsingUserUIDFromCertAuth AllowServiceExternalIPs AllowUnsafeMalformedObjectDeletion AtomicFIFO
  AtomicWriteVolumeUserFields AuthorizePodWebsocketUpgradeCreatePermission CBORServingAndStorage
  CPUManagerPolicyAlphaOptions CPUManagerPolicyBetaOptions CRDObservedGenerationTracking CRIListStreaming
  CSIVolumeHealth ChangeContainerStatusOnKubeletRestart ClearingNominatedNodeNameAfterBinding
  ClientsAllowCARotation ClientsAllowCBOR ClientsAllowTLSCacheGC ClientsPreferCBOR
  CloudControllerManagerWatchBasedRoutesReconciliation CloudControllerManagerWebhook ClusterTrustBundle
  ClusterTrustBundleProjection ComponentFlagz ComponentStatusz CompositePodGroup ConcurrentWatchObjectDecode
  ConsistentListFromCacheSkipTimeoutFallback ConstrainedImpersonation ContainerCheckpoint
  ContainerRestartRules ContainerStopSignals ContextualLogging
  ControllerManagerReleaseLeaderElectionLockOnExit CoordinatedLeaderElection CrossNamespaceVolumeDataSource
  CustomCPUCFSQuotaPeriod DRAConsumableCapacity DRADerivedAttributes DRADeviceBindingConditions
  DRADeviceCompatibilityGroups DRADeviceTaintRules DRADeviceTaints DRAExtendedResource DRAListTypeAttributes
  DRANodeAllocatableResources DRAOptionalNodeOperations DRAPartitionableDevices DRAPartitionableDevicesType
  DRAPrioritizedList DRAResourceClaimDeviceStatus DRAResourceClaimGranularStatusAuthorization
  DRAResourcePoolStatus DRASchedulerFilterTimeout DRAWorkloadResourceClaims DeclarativeValidationBeta
  DeclarativeValidationTakeover DefaultPodSysctls DeploymentReplicaSetTerminatingReplicas
  DetectCacheInconsistency DisableCPUQuotaWithExclusiveCPUs EmptyDirVolumeMode EnvFiles EtcdRangeStream
  EventedPLEG EvictionRequestAPI ExcludeAdmissionWebhookVirtualResources ExtendWebSocketsToKubelet
  GRPCContainerProbeTLS GangScheduling GenericWorkload GracefulNodeShutdown
  GracefulNodeShutdownBasedOnPodPriority H2CContainerProbe HPAConfigurableTolerance HPAGeneration
  HPAOptimizedSelectorStore HPAScaleToZero HostnameOverride HugepageAwareEviction ImageVolumeWithDigest
  InOrderInformersBatchProcess InPlacePodLevelResourcesVerticalScaling
  InPlacePodVerticalScalingExclusiveCPUs InPlacePodVerticalScalingExclusiveMemory
  InPlacePodVerticalScalingInitContainers InPlacePodVerticalScalingMemoryBackedVolumes
  InPlacePodVerticalScalingSchedulerPreemption InformerResourceVersion InterPodAffinityHostnameFastPath
  KMSv1 KubeProxyIPVS KubeProxyNFTablesLocalhostNodePorts KubeletAllocatedPodsEndpoint
  KubeletCrashLoopBackOffMax KubeletEnsureSecretPulledImages KubeletInUserNamespace
  KubeletPodResourcesListUseActivePods KubeletRegistrationGetOnExistsOnly KubeletSeparateDiskGC
  KubeletServiceAccountTokenForCredentialProviders ListFromCacheSnapshot
  LocalStorageCapacityIsolationFSQuotaMonitoring LoggingAlphaOptions LoggingBetaOptions
  ManifestBasedAdmissionControlConfig MatchLabelKeysInPodTopologySpread
  MatchLabelKeysInPodTopologySpreadSelectorMerge MaxUnavailableStatefulSet MemoryQoS MutablePVNodeAffinity
  MutablePodResourcesForSuspendedJobs MutableSchedulingDirectivesForSuspendedJobs MutatingAdmissionPolicy
  NFTablesNetlink NativeHistograms NodeControllerLeaseCircuitBreaker NodeDeclaredFeatures
  NodeLifecycleConditions NominatedNodeNameForExpectation OpenAPIEnums OpportunisticBatching
  PLEGOnDemandRelist PersistentVolumeClaimUnusedSinceTime PodAndContainerStatsFromCRI PodCertificateRequest
  PodDeletionCost PodGroupPreemptionPolicy PodLevelResourceManagers PodLevelResources
  PodLevelResourcesFixDefaulting PodLevelResourcesFixKubeletQOSClass PodLogsQuerySplitStreams
  PodReadyToStartContainersCondition PodTopologyLabelsAdmission PodsAPI PortForwardWebsockets
  PreventStaticPodAPIReferences QOSReserved ReduceDefaultCrashLoopBackOffDecay RelaxedServiceNameValidation
  ReloadKubeletClientCAFile ReloadKubeletServerCertificateFile RemoteRequestHeaderUID ResourceHealthStatus
  ResourceHealthStatusMessage RestartAllContainersOnContainerExits RotateKubeletServerCertificate
  RuntimeClassInImageCriApi SELinuxMount SchedulerAsyncAPICalls SchedulerAsyncPreemption
  SchedulerPopFromBackoffQ SchedulerPreQueueingHints ServiceAccountNodeAudienceRestriction
  ServiceCIDRStatusFieldWiping ShardedListAndWatch SizeBasedListCostEstimate
  StaleControllerConsistencyDaemonSet StaleControllerConsistencyHPA StaleControllerConsistencyJob
  StaleControllerConsistencyReplicaSet StaleControllerConsistencyStatefulSet StatefulSetRecreateStrategy
  StatefulSetSemanticRevisionComparison StorageCapacityScoring StorageNamespaceIndex StorageVersionAPI
  StorageVersionHash StorageVersionMigrator StrictIPCIDRValidation
  StructuredAuthenticationConfigurationEgressSelector StructuredAuthenticationConfigurationJWKSMetrics
  TaintTolerationComparisonOperators TokenRequestServiceAccountUIDValidation TopologyAwareWorkloadScheduling
  TopologyManagerPolicyAlphaOptions TopologyManagerPolicyBetaOptions TranslateStreamCloseWebsocketRequests
  UnauthenticatedHTTP2DOSMitigation UnknownVersionInteroperabilityProxy UnlockWhileProcessingFIFO
  UserNamespacesHostNetworkSupport VolumeBindMountOptions VolumeLimitScaling
  WatchCacheInitializationPostStartHook WatchList WatchListClient WatchListCompression
  WebhookRoundTripLoadBalancing WindowsCPUAndMemoryAffinity WindowsGracefulNodeShutdown WindowsHostNetwork
  WorkloadAwarePreemption WorkloadWithJob
`

/** Gates of 1.36.3 with only one value. */
const LOCKED_ON = `
  APIServerTracing AggregatedDiscoveryRemoveBetaType AnonymousAuthConfigurableEndpoints AnyVolumeDataSource
  AuthorizeNodeWithSelectors AuthorizeWithSelectors BtreeWatchCache CPUManagerPolicyOptions
  CRDValidationRatcheting CSIServiceAccountTokenSecrets ConsistentListFromCache CustomResourceFieldSelectors
  DRAAdminAccess DeclarativeValidation DisableAllocatorDualWrite DisableNodeKubeProxyVersion
  DynamicResourceAllocation ExecProbeTimeout ExternalServiceAccountTokenSigner ImageMaximumGCAge ImageVolume
  InOrderInformers InPlacePodVerticalScaling JobBackoffLimitPerIndex JobManagedBy JobPodReplacementPolicy
  JobSuccessPolicy KubeletCgroupDriverFromCRI KubeletFineGrainedAuthz KubeletPSI
  KubeletPodResourcesDynamicResources KubeletPodResourcesGet KubeletTracing LogarithmicScaleDown
  MatchLabelKeysInPodAffinity MultiCIDRServiceAllocator MutableCSINodeAllocatableCount NFTablesProxyMode
  NodeInclusionPolicyInPodTopologySpread NodeLogQuery NodeSwap OrderedNamespaceDeletion
  PodLifecycleSleepAction PodLifecycleSleepActionAllowZero PodObservedGenerationTracking
  PodSchedulingReadiness PreferSameTrafficDistribution ProcMountType RecoverVolumeExpansionFailure
  RecursiveReadOnlyMounts RelaxedDNSSearchValidation RelaxedEnvironmentVariableValidation
  ResilientWatchCacheInitialization RetryGenerateName SELinuxChangePolicy SELinuxMountReadWriteOncePod
  SchedulerQueueingHints SeparateTaintEvictionController ServiceAccountTokenJTI ServiceAccountTokenNodeBinding
  ServiceAccountTokenNodeBindingValidation ServiceAccountTokenPodNodeInfo SidecarContainers
  StreamingCollectionEncodingToJSON StreamingCollectionEncodingToProtobuf
  StructuredAuthenticationConfiguration SupplementalGroupsPolicy SystemdWatchdog TopologyManagerPolicyOptions
  UserNamespacesSupport VolumeAttributesClass WinDSR WinOverlay
`

const LOCKED_OFF = `
  AllowOverwriteTerminationGracePeriodSeconds GitRepoVolumeDriver SeparateCacheWatchRPC
`

const LOCKED_GATES: ReadonlyMap<string, boolean> = new Map([
  ...namesIn(LOCKED_ON).map(name => [name, true] as const),
  ...namesIn(LOCKED_OFF).map(name => [name, false] as const),
])

const OPEN_GATES: ReadonlySet<string> = new Set(namesIn(OPEN))

function namesIn(text: string): readonly string[] {
  return text.split(/\s+/).filter(name => name !== '')
}

/** Explicit values of gates; the others keep their defaults. */
export type FeatureGates = Readonly<Record<string, boolean>>

/** Gives the reason why kube-proxy refuses this value of a gate; undefined if it accepts it. */
export function whyNotGate(name: string, value: boolean): string | undefined {
  const locked = LOCKED_GATES.get(name)
  if (locked === undefined) return OPEN_GATES.has(name) ? undefined : 'unrecognized feature gate'
  return locked === value ? undefined : `cannot be set to ${value}: the feature is locked to ${locked}`
}

/**
 * Gives the gate that kprobe reads and that `name` probably means; undefined for a gate without effect here, which a newer
 * or an older Kubernetes may know.
 */
export function misspelledGate(name: string): string | undefined {
  const [word, read] = [name.toLowerCase(), [...Object.keys(READ), 'AllAlpha', 'AllBeta']]
  return read.find(gate => editDistance(word, gate.toLowerCase()) < 2)
}

/** The gates that kprobe reads: the default, and the group, AllAlpha or AllBeta, that sets one without an explicit value. */
const READ = {
  AllowServiceExternalIPs: { isOn: true, stage: undefined },
  ComponentFlagz: { isOn: true, stage: 'AllBeta' },
  ComponentStatusz: { isOn: true, stage: 'AllBeta' },
} as const

export function isGateOn(gates: FeatureGates, name: keyof typeof READ): boolean {
  const { isOn, stage } = READ[name]
  return gates[name] ?? (stage === undefined ? undefined : gates[stage]) ?? isOn
}

/** Reads `A=true,B=false`, which may be given several times; the last value of a gate applies. */
export function parseGates(
  texts: readonly string[],
): { readonly gates: FeatureGates } | { readonly problem: string } {
  const gates: [string, boolean][] = []
  for (const pair of texts.flatMap(text => text.split(','))) {
    if (pair === '') continue
    const equals = pair.indexOf('=')
    if (equals < 0) return { problem: `${JSON.stringify(pair)} is not written NAME=true or NAME=false` }
    const value = parseBool(pair.slice(equals + 1).trim())
    if (value === undefined) return { problem: `${JSON.stringify(pair)} does not end in true or false` }
    gates.push([pair.slice(0, equals).trim(), value])
  }
  return { gates: Object.fromEntries(gates) }
}
